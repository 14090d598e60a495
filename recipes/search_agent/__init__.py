"""The stage Search Agent: questions that need a search engine, mean-only advantages, a judge as reward."""
