/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package processes

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// lowestPort is the lowest port to choose: above the ports of well-known services.
const lowestPort = 15000

// FreePorts returns n free ports of the loopback address.
//
// They are below the kernel's range of ports for outgoing connections. A program
// with a port of that range might not get it back after a restart: the kernel may
// give it to an outgoing connection, even to a client that dials this very port.
func FreePorts(n int) ([]int, error) {
	lowest := ephemeralStart()
	ports := make([]int, 0, n)
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := 0 // the kernel's choice, when there is no room below its range
		if lowest > lowestPort+1000 {
			port = lowestPort + rand.IntN(lowest-lowestPort)
		}
		l, err := net.Listen("tcp", Loopback(port)) //nolint:noctx // returns at once
		if err != nil {
			continue
		}
		// The listeners stay open until all ports are found, so that the ports differ.
		listeners = append(listeners, l)
		if addr, ok := l.Addr().(*net.TCPAddr); ok {
			ports = append(ports, addr.Port)
		}
	}
	return nil, fmt.Errorf("no %d free ports on the loopback address", n)
}

// ephemeralStart returns the first port that the kernel uses for outgoing
// connections; 0 if it is unknown.
func ephemeralStart() int {
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0
	}
	var first, last int
	if _, err := fmt.Sscan(string(data), &first, &last); err != nil {
		return 0
	}
	return first
}

// Loopback returns the address of a port of this machine, as host:port.
func Loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
