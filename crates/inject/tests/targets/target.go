// Goroutines that compute and talk to each other, until standard input ends.
package main

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
)

func sum(depth int) int {
	if depth == 0 {
		return 0
	}
	return 1 + sum(depth-1)
}

func main() {
	var over atomic.Bool
	done := make(chan bool)
	for i := 0; i < 16; i++ {
		go func() {
			good := true
			for !over.Load() {
				good = good && sum(1000) == 1000
				time.Sleep(100 * time.Microsecond)
			}
			done <- good
		}()
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	over.Store(true)
	for i := 0; i < 16; i++ {
		if !<-done {
			os.Exit(1)
		}
	}
	os.Exit(42)
}
