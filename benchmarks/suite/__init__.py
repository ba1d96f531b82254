"""The parts of the benchmark suite, one idea a module; ``benchmarks/suite.py`` is the program."""
