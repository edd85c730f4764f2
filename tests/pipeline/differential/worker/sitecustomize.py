"""Spark's Python workers start with this where a test has put it on their path: they put the defect of the moment in before each task."""

import importlib.util
import sys


class Loader:
    """Loads ``pyspark.worker`` as its own loader does, and puts a step before its main."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        run = module.main

        def main(infile, outfile):
            from pipeline.differential.mutations import follow

            follow()
            run(infile, outfile)

        module.main = main


class Finder:
    """Finds that module as usual; it shares its own loader with the others of its archive."""

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002
        if name != "pyspark.worker":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        spec.loader = Loader(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
