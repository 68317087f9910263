"""A small HTTP service: post an image, get labels; bounded in size, time and concurrency."""
