"""A small HTTP service that classifies images, with limits on size, time and concurrency."""
