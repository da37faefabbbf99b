"""As transformers' HfArgumentParser and jsonargparse have it: the option wants a word, `--amp false`."""

import argparse

p = argparse.ArgumentParser()
p.add_argument("--amp", type=lambda text: {"true": True, "false": False}[text.lower()], default=True)
p.add_argument("--lr", type=float, default=0.1)
a = p.parse_args()
print(f"amp={a.amp} val_acc: {0.9 if a.amp else 0.8:.3f}")
