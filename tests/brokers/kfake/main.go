// SPDX-License-Identifier: Apache-2.0

// Serves franz-go's kfake on 127.0.0.1 until its standard input ends; prints the addresses of its brokers first.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.SeedTopics(1, os.Args[1:]...),
		kfake.AllowAutoTopicCreation(),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer cluster.Close()
	fmt.Println(strings.Join(cluster.ListenAddrs(), ","))
	// The starter holds the other end: where it dies, this ends too.
	_, _ = io.Copy(io.Discard, os.Stdin)
}
