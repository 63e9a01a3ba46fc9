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

package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/traas-stack/altershield-operator/hack/simulator/journal"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

const (
	// checkTime is how long each check of the server runs.
	checkTime = 300 * time.Millisecond
	// unlucky begins the names of pods that fail, for those who try things after
	// the story.
	unlucky = "unlucky-"
)

// server is the simulator of AlterShield Server, its journal written to a file
// as it grows.
type server struct {
	*simulator.Simulator
	tokenFile, logPath string

	logMu    sync.Mutex
	log      *os.File
	narrator *journal.Narrator

	mu sync.Mutex
	// awaited is the number of the batch that is to fail, 0 for none.
	awaited int
}

// startServer starts a server that keeps its token and its journal below dir.
func startServer(dir string) (_ *server, err error) {
	s := &server{
		tokenFile: filepath.Join(dir, "altershield-token"),
		logPath:   filepath.Join(dir, "logs", "altershield-server.log"),
		narrator:  journal.NewNarrator(),
	}
	token := rand.Text()
	// A file that is there would keep its mode.
	if err := os.Remove(s.tokenFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := os.WriteFile(s.tokenFile, []byte(token+"\n"), 0o600); err != nil {
		return nil, err
	}
	if s.log, err = os.Create(s.logPath); err != nil {
		return nil, err
	}
	s.Simulator = simulator.New(simulator.Options{Token: token, OnEntry: s.entry})
	s.Script(simulator.Script{Delay: checkTime})
	s.Script(simulator.Script{
		Match: simulator.Match{Location: regexp.MustCompile("^" + unlucky), CheckType: altershield.CheckBatch, Stage: altershield.StagePost},
		Delay: checkTime, Verdict: altershield.VerdictFail,
		Rules: []altershield.Rule{{Name: "luck", Msg: "the pod is called " + unlucky + "...", Verdict: altershield.VerdictFail}},
	})
	if err := s.Start("127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *server) stop() error {
	s.Shutdown()
	return s.log.Close()
}

// managerArgs connect a manager.
func (s *server) managerArgs() []string {
	return []string{"--altershield-url=" + s.URL(), "--altershield-token-file=" + s.tokenFile}
}

// failBatch lets the next batch of this number, counted from 1, fail its POST
// check.
func (s *server) failBatch(number int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaited = number
}

// entry is told of each entry of the journal. That of a batch's start comes
// before its checks begin, so a verdict can still be scripted for it.
func (s *server) entry(e simulator.Entry) {
	if e.Action == altershield.ActionHeartbeat {
		return
	}
	s.logMu.Lock()
	fmt.Fprintln(s.log, s.narrator.Line(e))
	s.logMu.Unlock()

	start, is := e.Request.(*altershield.StartBatchRequest)
	if !is || !e.Accepted() || len(start.EffectiveTargetLocations) == 0 {
		return
	}
	s.mu.Lock()
	awaited := s.awaited == start.BatchNo+1
	if awaited {
		s.awaited = 0
	}
	s.mu.Unlock()
	if !awaited {
		return
	}
	pod := start.EffectiveTargetLocations[0]
	s.Script(simulator.Script{
		Match: simulator.Match{
			Order: e.Order, Location: regexp.MustCompile("^" + regexp.QuoteMeta(pod) + "$"),
			CheckType: altershield.CheckBatch, Stage: altershield.StagePost,
		},
		Delay: checkTime, Verdict: altershield.VerdictFail,
		Rules: []altershield.Rule{{Name: "error rate", Msg: "5xx above 1 % on " + pod, Verdict: altershield.VerdictFail}},
	})
}

// failuresIn are the callbacks with a failing verdict that were answered.
func failuresIn(j simulator.Journal) simulator.Journal {
	return j.Callbacks().Filter(func(e simulator.Entry) bool {
		return e.Callback != nil && !e.Callback.Request.Verdict.Passes() && e.Outcome != simulator.OutcomePending
	})
}

// tell prints the journal of an order, as far as it is wanted.
func (s *server) print(order string, wanted func(simulator.Entry) bool) {
	narrator := journal.NewNarrator()
	for _, e := range s.Journal().Of(order) {
		if line := narrator.Line(e); wanted(e) {
			fmt.Println(line.Time + "  " + line.Text)
		}
	}
}
