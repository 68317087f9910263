"""What a person should look at, what people said, and how accurate the predictions are."""
