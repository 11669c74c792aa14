// A Go program that has handlers for all signals from its start on, and changes them: its runtime calls the kernel itself. It calls
// main.Work 10 times in each state.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

//go:noinline
func Work(n int) int {
	return n*3 + 1
}

func some() int {
	sum := 0
	for i := 0; i < 10; i++ {
		sum += Work(i)
	}
	return sum
}

func main() {
	sum := some()
	caught := make(chan os.Signal, 1)
	signal.Notify(caught)
	sum += some()
	signal.Ignore(syscall.SIGTRAP)
	sum += some()
	signal.Reset()
	sum += some()
	fmt.Println("sum", sum)
}
