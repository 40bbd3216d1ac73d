package tcpproxy

const (
	MaxPipes     = maxPipes
	MaxIdlePipes = maxIdlePipes
)

// Pipes returns how many pipes the process has open and how many of them wait.
func Pipes() (open, idle int) {
	pipes.mu.Lock()
	defer pipes.mu.Unlock()
	return pipes.open, len(pipes.idle)
}

// TakeAllPipes leaves none, until they are given back.
func TakeAllPipes() (n int, giveBack func()) {
	var taken []*pipe
	for p := pipes.take(); p != nil; p = pipes.take() {
		taken = append(taken, p)
	}
	return len(taken), func() {
		for _, p := range taken {
			pipes.put(p)
		}
	}
}
