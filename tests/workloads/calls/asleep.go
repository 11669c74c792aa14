// Threads that sleep in calls, in Go: in read on a pipe, in nanosleep, and in what its own scheduler waits with. For each
// "wake" those in read are woken, ask for their parent three times each, and sleep again.
package main

import (
	"bufio"
	"fmt"
	"os"
	"syscall"
)

const sleepers = 4

func main() {
	var woken [sleepers][2]int
	reports := make(chan bool)
	for i := range woken {
		if syscall.Pipe(woken[i][:]) != nil {
			os.Exit(1)
		}
		go func() {
			var one [1]byte
			for {
				n, err := syscall.Read(woken[i][0], one[:])
				for range 3 {
					syscall.Getppid()
				}
				reports <- n == 1 && err == nil
			}
		}()
	}
	go func() {
		day := syscall.Timespec{Sec: 86400}
		for {
			syscall.Nanosleep(&day, nil)
		}
	}()
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		well := true
		for i := range woken {
			syscall.Write(woken[i][1], []byte{'x'})
		}
		for range woken {
			well = <-reports && well
		}
		if well {
			fmt.Println("done", lines.Text())
		} else {
			fmt.Println("failed", lines.Text())
		}
	}
	os.Exit(7)
}
