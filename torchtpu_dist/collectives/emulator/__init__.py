"""The torus in memory: CPU processes joined by shared memory, behind torch's process-group interface."""
