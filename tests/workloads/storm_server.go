// Answers each POST with its path and the body turned round. Says "ready PORT"; ends at SIGTERM.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

func answer(to http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		panic(err)
	}
	slices.Reverse(body)
	all := append([]byte(request.URL.Path), body...)
	to.Header().Set("Content-Length", fmt.Sprint(len(all)))
	to.Write(all)
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	go http.Serve(listener, http.HandlerFunc(answer))
	fmt.Printf("ready %d\n", listener.Addr().(*net.TCPAddr).Port)
	<-end
}
