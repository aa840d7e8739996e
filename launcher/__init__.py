"""Starts, watches and stops the processes of a job: one process a device, on this machine.

Reading order: ``job`` (what is started), ``fork_server`` and ``rank`` (the processes), ``supervise`` (what to do
when one of them fails), ``local`` (a whole job on this machine), ``cli`` (the command line).
"""
