"""What a plan says before a run: the tasks that would run, and what they are likely to cost."""
