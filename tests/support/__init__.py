"""What the tests share: references, checks, builds and child processes."""
