"""The package as a whole: backends, installation, doctor's page, documentation, import rules."""
