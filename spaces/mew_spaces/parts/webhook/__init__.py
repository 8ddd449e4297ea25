"""Posts attention items to a web address: `attention.webhook` of space.yaml."""
