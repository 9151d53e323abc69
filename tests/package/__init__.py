"""The package as installed: backend choice, report, documentation."""
