"""One run on the server, round by round, without Flower."""
