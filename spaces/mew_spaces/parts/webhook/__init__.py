"""Posts what needs a person to an address outside of the space: `attention.webhook` of space.yaml."""
