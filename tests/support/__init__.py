"""What the tests share: a project in a folder, a simulator process, the command line as a real process."""
