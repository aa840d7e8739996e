"""Runs a job on a Ray cluster: whole slices are reserved, every host has an agent, lost hosts are survived."""
