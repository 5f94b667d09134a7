"""20 papers of nine topics (or `--n`), two turns each with a search between them: a loop, batch-agent and agac."""

from agentload import TOPICS, compare, options

if __name__ == "__main__":
    given = options(__doc__, n=20, inflight=8, tool=0.4, prefix=6000)
    topics = [f"topic {number}" for number, times in enumerate(TOPICS, 1) for _ in range(times)]
    compare(given, [topics[number % len(topics)] for number in range(given.n)])
