"""For programs and notebooks: what `import parallel_ppo` offers."""
