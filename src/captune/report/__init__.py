"""The report: one self-contained page that shows what a run did, and figures as files."""
