"""Starts, watches and ends training processes: on this machine, later on a Ray cluster."""
