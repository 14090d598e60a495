"""The stage General Agent: tool calls that change a server's state; the terminal state is the reward."""
