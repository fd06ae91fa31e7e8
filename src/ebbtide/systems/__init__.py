"""The five ready-made systems, each with its pipeline and its demo."""
