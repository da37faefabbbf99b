"""The training of train_argparse.py, which reads its settings with Hydra from conf/train.yaml.

python examples/train_hydra.py lr=0.1 model.hidden=[64,32]
"""

import hydra
from train_argparse import train


@hydra.main(version_base=None, config_path="conf", config_name="train")
def main(config):
    train(epochs=config.epochs, batch_size=config.batch_size, lr=config.lr, **config.model)


if __name__ == "__main__":
    main()
