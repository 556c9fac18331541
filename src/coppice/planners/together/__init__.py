"""Plans for groups of a job that exchange at once, and the shares of links that they have."""
