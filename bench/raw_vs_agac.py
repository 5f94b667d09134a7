"""100 agents (or `--n`) with an 800 ms tool over ten queries: 100 calls of the tool become ten."""

from agentload import compare, options

if __name__ == "__main__":
    given = options(__doc__, n=100, inflight=32, tool=0.8, prefix=6000)
    compare(given, [f"query {number % 10}" for number in range(given.n)])
