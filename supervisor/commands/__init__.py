"""What each command does. Each has a `main` that takes the checked settings and returns the exit status."""
