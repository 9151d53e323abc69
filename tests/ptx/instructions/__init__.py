"""The C++ for each instruction, by subject; ``registry.statement`` finds who writes it."""
