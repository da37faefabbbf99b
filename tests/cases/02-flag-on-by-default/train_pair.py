"""As tyro and argparse.BooleanOptionalAction have it: --amp and --no-amp, on by default."""

import argparse

p = argparse.ArgumentParser()
p.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
p.add_argument("--lr", type=float, default=0.1)
a = p.parse_args()
print(f"amp={a.amp} val_acc: {0.9 if a.amp else 0.8:.3f}")
