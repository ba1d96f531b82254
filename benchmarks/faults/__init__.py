"""Small reproductions of faults that users of vectorized environments have reported, and what each library does then.

`faults_vs_peers.py`, one folder up, runs them. One fault is one function: it gets a `Library`, makes environments
through it, and returns an `Outcome`, a few words of what came back and whether that is right. It runs in a process of
its own, so it may leave anything behind and may hang.
"""
