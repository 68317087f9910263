"""Taking a run elsewhere: the model for other programs, the labels for other tools."""
