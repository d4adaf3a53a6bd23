"""FedBNN as a Flower app: the installed distribution does the work."""
