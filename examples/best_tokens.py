"""How likely is it that descent finds all best tokens, over n, T, d and the size of the start?

attnlab study run examples/best_tokens.py
attnlab study export examples/best_tokens.py --format latex --by d size --of best --across size
"""

import attnlab as al


def block(point, seeds):
    tokens = al.data.sphere(n=point["n"], T=point["T"], d=point["d"], seed=seeds)
    run = al.descend(tokens, al.ngd(0.1), steps=2000, seed=seeds, init_scale=point["size"], record=None)
    return {"best": (run.selected == al.optimal_tokens(tokens)).all(-1)}


grid = {"n": [2, 5], "T": [4, 8], "d": [5, 10, 20], "size": [0.01, 0.1, 1.0, 10.0]}
study = al.Study(block, grid, trials=200, name="best tokens")

if __name__ == "__main__":
    print(study.run(jobs=-1))
    study.plot("d", "best", "size").savefig("best_tokens.png")
