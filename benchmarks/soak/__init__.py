"""The parts of the soak program, one idea a file.

`spaces` and `envs` make environments out of random spaces, `faults` breaks them, `faces` is how they are driven,
`oracle` says what has to come back, `compare` whether it did, `scenario` draws and runs one such life, `leaks` and
`growth` look at what it leaves, and `report` writes it all down.
"""
