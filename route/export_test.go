package route

// Poisoning is whether exchanges are used once.
const Poisoning = poisoning
