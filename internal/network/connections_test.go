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

package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// pipes is a listener of connections that are made by dial.
type pipes struct{ accept chan net.Conn }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.accept <- server
	return client
}

func (p *pipes) Accept() (net.Conn, error) {
	conn, open := <-p.accept
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p *pipes) Close() error {
	close(p.accept)
	return nil
}

func (p *pipes) Addr() net.Addr { return nil }

// isOpen reports whether the other side of a pipe is open.
func isOpen(client net.Conn) bool {
	if err := client.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return false
	}
	_, err := client.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

func TestConnections(t *testing.T) {
	p := &pipes{accept: make(chan net.Conn, 1)}
	left := 0
	l := listen(p, &Options{Source: SourceOf}, &Limits{Connections: 3}, func(net.Addr) { left++ })
	type pair struct {
		client net.Conn
		server *connection
	}
	take := func(client net.Conn) pair {
		conn, err := l.Accept()
		server, ok := conn.(*connection)
		if err != nil || !ok {
			panic(fmt.Sprintf("Accept() = %T, %v", conn, err))
		}
		return pair{client, server}
	}
	accept := func() pair { return take(p.dial()) }
	expectOpen := func(when string, pairs []pair, want ...bool) {
		t.Helper()
		got := []bool{}
		for _, p := range pairs {
			got = append(got, isOpen(p.client))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("open %s (-want +got):\n%s", when, diff)
		}
	}
	a, b, c := accept(), accept(), accept()
	a.server.delivered()
	expectOpen("up to the limit", []pair{a, b, c}, true, true, true)
	d := accept()
	expectOpen("after one more", []pair{a, b, c, d}, true, false, true, true)
	// It is not counted, so later calls change nothing.
	b.server.delivered()
	b.server.Close()
	b.server.Close()
	e := accept()
	expectOpen("after another", []pair{a, b, c, d, e}, true, false, false, true, true)
	if left != 2 {
		t.Errorf("%d gave way, want 2", left)
	}
	d.server.delivered()
	e.server.delivered()

	// Without strangers, a new connection waits for a place.
	accepted := make(chan pair, 1)
	go func() { accepted <- accept() }()
	select {
	case <-accepted:
		t.Error("one more than the limit")
	case <-time.After(20 * time.Millisecond):
	}
	a.server.Close()
	f := receive(t, accepted, "the place that became free")
	f.server.delivered()

	// A connection stops waiting when the listener is closed.
	last := p.dial()
	go func() { accepted <- take(last) }()
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	g := receive(t, accepted, "the last")
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept() = %v after Close", err)
	}
	expectOpen("after the listener was closed", []pair{d, e, f, g}, true, true, true, true)

	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if l.drain(soon) {
		t.Error("drained with four connections open")
	}
	drained := make(chan bool, 1)
	go func() { drained <- l.drain(t.Context()) }()
	for _, p := range []pair{d, e, f, g} {
		p.server.Close()
	}
	if !receive(t, drained, "the connections to end") {
		t.Error("not drained with no connection open")
	}
}

// receive waits for a value.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("gave up waiting for %s", what)
		panic("unreachable")
	}
}

// from is a connection of a source.
type from struct {
	net.Conn
	source string
}

func (c from) RemoteAddr() net.Addr { return address(c.source + ":1") }

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// TestConnectionsOfManySources: of too many connections, one of the source with most of
// them gives way; a source that has authenticated gives way last.
func TestConnectionsOfManySources(t *testing.T) {
	p := &pipes{accept: make(chan net.Conn, 1)}
	var left []string
	isKnown := func(source netip.Addr) bool { return source == SourceOf("192.0.2.9:1") }
	l := listen(p, &Options{Source: SourceOf, Known: isKnown}, &Limits{Connections: 4}, func(remote net.Addr) {
		left = append(left, remote.String())
	})
	accept := func(source string) {
		client, server := net.Pipe()
		t.Cleanup(func() { client.Close() })
		p.accept <- from{server, source}
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range []string{"192.0.2.9", "192.0.2.9", "192.0.2.9", "192.0.2.1"} {
		accept(source)
	}
	accept("192.0.2.2") // replaces .1: .9 is known
	accept("192.0.2.9") // replaces .2
	accept("192.0.2.3") // replaces one of .9: all are known
	accept("192.0.2.4") // replaces .3
	if diff := cmp.Diff([]string{"192.0.2.1:1", "192.0.2.2:1", "192.0.2.9:1", "192.0.2.3:1"}, left); diff != "" {
		t.Errorf("gave way (-want +got):\n%s", diff)
	}
}

// sourced makes a listener; accept opens a connection of a source, and left returns the
// addresses of the connections that gave way.
func sourced(t *testing.T, limits Limits) (accept func(source string) *connection, left func() []string) {
	t.Helper()
	p := &pipes{accept: make(chan net.Conn, 1)}
	var names []string
	l := listen(p, &Options{Source: SourceOf}, &limits, func(remote net.Addr) { names = append(names, remote.String()) })
	return func(source string) *connection {
			t.Helper()
			client, server := net.Pipe()
			t.Cleanup(func() { client.Close() })
			p.accept <- from{server, source}
			close(p.accept) // Accept must not wait for another after it refused one
			conn, err := l.Accept()
			p.accept = make(chan net.Conn, 1)
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			if err != nil {
				t.Fatal(err)
			}
			return connectionOf(conn)
		}, func() []string {
			defer func() { names = nil }()
			return names
		}
}

func ended(c *connection) bool {
	_, open := c.listener.open[c]
	return !open
}

// request makes a connection deliver a request and answers it.
func request(c *connection) {
	c.follow(http.StateActive)
	c.delivered()
	c.follow(http.StateIdle)
}

// TestIdleGiveWay: idle connections give way after strangers: of the source with most of
// them, the connection that was used longest ago.
func TestIdleGiveWay(t *testing.T) {
	accept, left := sourced(t, Limits{Connections: 6})
	expect := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, left()); diff != "" {
			t.Errorf("gave way %s (-want +got):\n%s", when, diff)
		}
	}
	server := accept("192.0.2.1")
	request(server)
	silent := accept("192.0.2.2")
	first, second, third := accept("192.0.2.3"), accept("192.0.2.3"), accept("192.0.2.3")
	for _, c := range []*connection{first, second, third} {
		request(c)
	}
	busy := accept("192.0.2.3")
	busy.delivered()
	expect("up to the limit")
	request(accept("192.0.2.4"))
	expect("while one is silent", "192.0.2.2:1")
	silent.follow(http.StateIdle)  // it is not counted
	first.follow(http.StateActive) // it begins a request, so the second is the next
	request(accept("192.0.2.4"))
	if !ended(second) || ended(first) || ended(third) {
		t.Errorf("ended: first %t, second %t, third %t; want the second", ended(first), ended(second), ended(third))
	}
	expect("of the idle", "192.0.2.3:1")
	busy.follow(http.StateIdle)
	for _, c := range []*connection{first, third, busy, server} {
		c.delivered()
	}
	// Two idle connections of .4 are left; the one that has waited longer gives way.
	request(accept("192.0.2.5"))
	expect("of the rest", "192.0.2.4:1")
	request(accept("192.0.2.6"))
	expect("of as many each", "192.0.2.4:1")
}

// TestPerSource: while places are free, a source may take them all. At the limit, the
// connections of a source with too many give way to its new ones; if all are busy, the new
// one gives way. Other sources do not wait for it.
func TestPerSource(t *testing.T) {
	accept, left := sourced(t, Limits{Connections: 4, PerSource: 2})
	expect := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, left()); diff != "" {
			t.Errorf("gave way %s (-want +got):\n%s", when, diff)
		}
	}
	other := accept("192.0.2.1")
	a, b, c := accept("192.0.2.9"), accept("192.0.2.9"), accept("192.0.2.9")
	expect("up to the limit")
	request(b)
	d := accept("192.0.2.9")
	expect("one that is silent", "192.0.2.9:1")
	if !ended(a) || ended(b) {
		t.Errorf("ended: silent %t, idle %t", ended(a), ended(b))
	}
	for _, connection := range []*connection{b, c, d} {
		connection.delivered()
	}
	if accept("192.0.2.9") != nil {
		t.Error("a source replaced a connection of another one")
	}
	expect("all in requests", "192.0.2.9:1")
	if ended(other) {
		t.Error("another source gave way")
	}
	if accept("192.0.2.2") == nil {
		t.Error("others are kept out")
	}
	expect("a silent one", "192.0.2.1:1")
	c.Close()
	if accept("192.0.2.9") == nil {
		t.Error("the place that became free is not given")
	}
}
