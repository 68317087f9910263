"""Images, class names and the task they make."""
