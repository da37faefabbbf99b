from trial import wait


def run(config, context):
    wait(config["length"], config["index"])
