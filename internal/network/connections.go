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
	"cmp"
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// state of a connection, in the order in which connections give way.
type state int

const (
	// stranger is the state of a connection that has delivered no request.
	stranger state = iota
	// idle is the state between requests.
	idle
	// busy is the state in a request: a busy connection gives way to none.
	busy
)

// listener bounds how many connections are open at once. At the limit, a connection outside
// requests gives way to the new one. In this order: a stranger before an idle connection; a
// connection of a source that has not authenticated; of the source with most connections; the
// connection that has waited longest. So neither silent or slow clients nor clients with many
// connections keep others out: a request is delivered within milliseconds. New connections
// wait only when all are busy. Safe for concurrent use.
type listener struct {
	net.Listener
	max, perSource int
	sourceOf       func(remote string) netip.Addr
	known          func(source netip.Addr) bool
	gaveWay        func(remote net.Addr)

	mu sync.Mutex
	// changed is signalled when a connection ends or becomes idle, and when the listener
	// closes.
	changed *sync.Cond
	open    map[*connection]struct{}
	sources map[netip.Addr]*source
	// turn counts up, to order connections by the time they have waited.
	turn   uint64
	closed bool
}

// source is a client with connections.
type source struct {
	address netip.Addr
	// open is the number of its connections, waiting the numbers of strangers and idle ones.
	open    int
	waiting [busy]int
}

// connection is a connection of a listener, whose lock guards its state.
type connection struct {
	net.Conn
	listener *listener
	from     *source
	state    state
	since    uint64
}

// listen bounds the connections of a listener.
func listen(to net.Listener, o *Options, l *Limits, gaveWay func(remote net.Addr)) *listener {
	bounded := &listener{
		Listener: to, max: l.Connections, perSource: l.PerSource, sourceOf: o.Source, known: o.Known, gaveWay: gaveWay,
		open: map[*connection]struct{}{}, sources: map[netip.Addr]*source{},
	}
	bounded.changed = sync.NewCond(&bounded.mu)
	if bounded.known == nil {
		bounded.known = func(netip.Addr) bool { return false }
	}
	return bounded
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &connection{Conn: accepted, listener: l, state: busy}
		left := l.admit(c, l.sourceOf(accepted.RemoteAddr().String()))
		if left != nil {
			l.gaveWay(left.RemoteAddr())
			_ = left.Conn.Close() // its reader gets an error
		}
		if left != c {
			return c, nil
		}
	}
}

// admit counts a connection in when there is a place for it, or after the listener was closed.
// It returns the connection that has to leave, if any, which is not counted any longer. If
// all places are taken and the source of the new connection has too many, all busy, it
// returns the new connection: others must not wait for it.
func (l *listener) admit(c *connection, address netip.Addr) (left *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.open) >= l.max && !l.closed {
		var among *source // nil: all
		if from := l.sources[address]; from != nil && l.perSource > 0 && from.open >= l.perSource {
			among = from
		}
		switch left = l.leaving(among); {
		case left != nil:
			l.remove(left)
		case among != nil:
			return c
		default:
			l.changed.Wait()
		}
	}
	if l.sources[address] == nil {
		l.sources[address] = &source{address: address}
	}
	c.from = l.sources[address]
	c.from.open++
	l.open[c] = struct{}{}
	l.become(c, stranger)
	return left
}

// leaving returns the connection that has to give way, among all or among the connections of
// one source; nil when all are busy. The lock is held.
func (l *listener) leaving(among *source) (leaving *connection) {
	for c := range l.open {
		if c.state != busy && (among == nil || c.from == among) && (leaving == nil || l.before(c, leaving)) {
			leaving = c
		}
	}
	return leaving
}

// before reports whether a connection gives way before another one. The lock is held.
func (l *listener) before(a, b *connection) bool {
	if a.state != b.state {
		return a.state < b.state
	}
	if a.from != b.from {
		if known := l.known(a.from.address); known != l.known(b.from.address) {
			return !known
		}
	}
	return cmp.Or(cmp.Compare(b.from.waiting[b.state], a.from.waiting[a.state]), cmp.Compare(a.since, b.since)) < 0
}

// become sets the state of a connection, whose wait begins now. The lock is held.
func (l *listener) become(c *connection, next state) {
	if c.state != busy {
		c.from.waiting[c.state]--
	}
	if next != busy {
		c.from.waiting[next]++
	}
	l.turn++
	c.state, c.since = next, l.turn
}

// remove counts a connection out, once. The lock is held.
func (l *listener) remove(c *connection) {
	if _, open := l.open[c]; !open {
		return
	}
	l.become(c, busy)
	delete(l.open, c)
	if c.from.open--; c.from.open == 0 {
		delete(l.sources, c.from.address)
	}
	l.changed.Broadcast()
}

// Close implements net.Listener: no new connections are accepted, open connections stay.
// It may be called repeatedly.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.changed.Broadcast()
	return l.Listener.Close()
}

// drain waits until no connection is open; false when the context ends before.
func (l *listener) drain(ctx context.Context) bool {
	defer context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})()
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.open) > 0 && ctx.Err() == nil {
		l.changed.Wait()
	}
	return len(l.open) == 0
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.listener.mu.Lock()
	c.listener.remove(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// delivered makes a connection busy until its request is answered.
func (c *connection) delivered() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.become(c, busy)
}

// follow follows the state that an http.Server gives to a connection that is kept alive:
// after a request it is idle, and when it begins another, its wait begins again.
func (c *connection) follow(next http.ConnState) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	switch _, open := l.open[c]; {
	case !open:
	case next == http.StateIdle && c.state == busy, next == http.StateActive && c.state == idle:
		l.become(c, idle)
		l.changed.Broadcast()
	}
}

// connectionKey is the key of the connection in the context of a request.
type connectionKey struct{}

// Delivered makes the connection of a request to a Server busy until the request is answered.
func Delivered(ctx context.Context) {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		c.delivered()
	}
}
