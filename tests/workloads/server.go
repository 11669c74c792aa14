// A Go server and its clients in one process, over the loopback, and children: many threads, sockets, epoll and signals.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"sync"
)

const clients, requests, children = 8, 50, 10

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func ask(address string, who int, count *int, lock *sync.Mutex) {
	for i := 0; i < requests; i++ {
		path := fmt.Sprintf("/%d/%d", who, i)
		answer, err := http.Get("http://" + address + path)
		check(err)
		body, err := io.ReadAll(answer.Body)
		check(err)
		answer.Body.Close()
		if string(body) != "hello "+path {
			panic(string(body))
		}
		lock.Lock()
		*count++
		lock.Unlock()
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go http.Serve(listener, http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		fmt.Fprint(answer, "hello ", request.URL.Path)
	}))
	var all sync.WaitGroup
	var lock sync.Mutex
	count := 0
	for who := 0; who < clients; who++ {
		all.Add(1)
		go func(who int) {
			defer all.Done()
			ask(listener.Addr().String(), who, &count, &lock)
		}(who)
	}
	all.Wait()
	for i := 0; i < children; i++ {
		said, err := exec.Command("echo", "child").Output()
		check(err)
		if string(said) != "child\n" {
			panic(string(said))
		}
	}
	fmt.Println(count)
}
