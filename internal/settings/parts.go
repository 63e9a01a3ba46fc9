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

package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Defaults of settings with parts. Messages quote them as examples.
const (
	timeoutsExample = "wait=60s,pre=120s,post=120s,settle=10s"
	rollbackExample = "after=2m,slow=10m,tolerate=10%,proven=5m"
	limitExample    = "5/10m"
	holdingExample  = "every,atMost=30m"
)

// Batches that a rollout may wait for.
const (
	holdFirst = "first"
	holdEvery = "every"
)

// provenPart is the part of the setting rollback for Settings.RollbackProven.
const provenPart = "proven"

// MaxProven bounds RollbackProven.
const MaxProven = time.Hour

// Bounds of a quarantine and of the rollback limit.
const (
	// MaxQuarantine is the longest time for which a version that never started is denied.
	MaxQuarantine = 24 * time.Hour
	// MaxLimit bounds the number of rollbacks in the setting. At most 500 are remembered, so a greater number counts as 500.
	MaxLimit = 1000
	// MaxLimitWindow bounds the time in which rollbacks are counted.
	MaxLimitWindow = 24 * time.Hour
)

// Longest wait of a rollout for the verdicts on its pods.
const (
	// DefaultHold is the default.
	DefaultHold = 30 * time.Minute
	// MinHold and MaxHold bound the setting.
	MinHold = time.Minute
	MaxHold = 2 * time.Hour
)

// readParts reads a text such as "a=1,b=2" with the function of each part. Each part may occur once.
func readParts(content string, read map[string]func(text string) error) error {
	left := maps.Clone(read)
	for part := range strings.SplitSeq(content, ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(part), "=")
		into, ok := left[name]
		if !ok {
			return fmt.Errorf("%q names an unknown part, or names a part twice; the parts are %s, each at most once",
				part, strings.Join(slices.Sorted(maps.Keys(read)), ", "))
		}
		if err := into(text); err != nil {
			return fmt.Errorf("%q: %w", part, err)
		}
		delete(left, name)
	}
	return nil
}

// atLeastOneSecond reads a duration of at least one second.
func atLeastOneSecond(into *time.Duration) func(string) error {
	return func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Second {
			return errors.New("not a duration of at least 1s")
		}
		*into = d
		return nil
	}
}

// zeroOr reads a duration that may be 0, with or without a unit.
func zeroOr(into *time.Duration) func(string) error {
	return func(text string) error {
		if d, err := time.ParseDuration(text); err == nil && d == 0 {
			*into = 0
			return nil
		}
		if err := atLeastOneSecond(into)(text); err != nil {
			return errors.New("neither 0 nor a duration of at least 1s")
		}
		return nil
	}
}

// provenTime reads Settings.RollbackProven.
func provenTime(into *time.Duration) func(string) error {
	return func(text string) error {
		if err := zeroOr(into)(text); err != nil || *into > MaxProven {
			return errors.New("neither 0 nor a duration from 1s to 1h")
		}
		return nil
	}
}

// percent reads a share such as "10%".
func percent(into *int) func(string) error {
	return func(text string) error {
		digits, ok := strings.CutSuffix(text, "%")
		n, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || n > 100 || !ok && n != 0 {
			return errors.New("not a share of the replicas from 0% to 100%")
		}
		*into = int(n)
		return nil
	}
}

func applyTimeouts(s *Settings, v v1alpha1.OpsConfigValue) error {
	if !v.Enable {
		return readTimeouts(s, timeoutsExample)
	}
	return readTimeouts(s, v.Content)
}

// readTimeouts reads the thresholds in a text; others stay.
func readTimeouts(s *Settings, content string) error {
	read := *s
	err := readParts(content, map[string]func(string) error{
		"wait": atLeastOneSecond(&read.Wait), "pre": atLeastOneSecond(&read.PreTimeout), "post": atLeastOneSecond(&read.PostTimeout),
		"settle": zeroOr(&read.Settle),
	})
	if err != nil {
		return fmt.Errorf("%w; write it as in %q", err, timeoutsExample)
	}
	*s = read
	return nil
}

func applyRollback(s *Settings, v v1alpha1.OpsConfigValue) error {
	if v.Enable {
		return readRollback(s, v.Content)
	}
	s.Rollback = false
	return nil
}

// readRollback turns rollbacks on and reads the thresholds in a text; others stay. A duration alone is the threshold after.
func readRollback(s *Settings, content string) error {
	read := *s
	read.Rollback = true
	var err error
	if strings.Contains(content, "=") {
		err = readParts(content, map[string]func(string) error{
			"after": atLeastOneSecond(&read.RollbackAfter), "slow": atLeastOneSecond(&read.RollbackSlow),
			"tolerate": percent(&read.RollbackTolerate), provenPart: provenTime(&read.RollbackProven),
		})
	} else if err = atLeastOneSecond(&read.RollbackAfter)(content); err != nil {
		err = fmt.Errorf("%q: %w", content, err)
	}
	if err != nil {
		return fmt.Errorf("%w; write it as in \"2m\" or %q", err, rollbackExample)
	}
	*s = read
	return nil
}

func applyQuarantine(s *Settings, v v1alpha1.OpsConfigValue) error {
	limit := time.Hour
	if v.Enable {
		if err := atLeastOneSecond(&limit)(v.Content); err != nil || limit > MaxQuarantine {
			return fmt.Errorf("%q is not a time for which a version is denied; write a duration from 1s to 24h, as in \"1h\"", v.Content)
		}
	}
	s.Quarantine, s.QuarantineFor = v.Enable, limit
	return nil
}

func applyLimit(s *Settings, v v1alpha1.OpsConfigValue) error {
	count, window := 5, 10*time.Minute
	if v.Enable {
		number, duration, _ := strings.Cut(v.Content, "/")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil || n < 1 || n > MaxLimit || atLeastOneSecond(&window)(duration) != nil || window > MaxLimitWindow {
			return fmt.Errorf("%q is not a number of rollbacks (1 to %d) and the time in which they are counted (1s to 24h); write it as in %q",
				v.Content, MaxLimit, limitExample)
		}
		count = int(n)
	}
	s.Limit, s.LimitCount, s.LimitWindow = v.Enable, count, window
	return nil
}

func applyHolding(s *Settings, v v1alpha1.OpsConfigValue) error {
	if v.Enable {
		return readHolding(s, v.Content)
	}
	s.Hold, s.HoldDaemonSets = v1alpha1.HoldNone, false
	return nil
}

// readHolding reads which batches a rollout waits for, whether DaemonSets are held, and the longest wait if the text has
// it; else that stays.
func readHolding(s *Settings, content string) error {
	read := *s
	read.HoldDaemonSets = false
	what, rest, more := strings.Cut(content, ",")
	switch strings.TrimSpace(what) {
	case holdFirst:
		read.Hold = v1alpha1.HoldFirstBatch
	case holdEvery:
		read.Hold = v1alpha1.HoldEveryBatch
	default:
		return fmt.Errorf("%q names no batches that a rollout waits for; write %q or %q, with the longest time if need be, as in %q",
			what, holdFirst, holdEvery, holdingExample)
	}
	if more {
		if err := readParts(rest, map[string]func(string) error{
			"atMost": holdTime(&read.HoldAtMost), "daemonsets": flag(&read.HoldDaemonSets),
		}); err != nil {
			return fmt.Errorf("%w; write it as in %q", err, holdingExample)
		}
	}
	*s = read
	return nil
}

// flag reads a part without a value.
func flag(into *bool) func(string) error {
	return func(text string) error {
		if *into = true; text != "" {
			return errors.New("has no value")
		}
		return nil
	}
}

// holdTime reads the longest wait of a rollout.
func holdTime(into *time.Duration) func(string) error {
	return func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil || d < MinHold || d > MaxHold {
			return errors.New("not a duration from 1m to 2h")
		}
		*into = d
		return nil
	}
}

// AlsoHold adds another hold. The strictest hold counts, with the longest time of both.
func (s *Settings) AlsoHold(until v1alpha1.HoldUntil, atMost time.Duration) {
	s.Hold, s.HoldAtMost = Strictest(s.Hold, s.HoldAtMost, until, atMost)
}

// Strictest returns the stricter of two holds, with the longer time if both hold.
func Strictest(
	a v1alpha1.HoldUntil, aTime time.Duration, b v1alpha1.HoldUntil, bTime time.Duration,
) (until v1alpha1.HoldUntil, atMost time.Duration) {
	switch {
	case !b.Holds():
		return a, aTime
	case !a.Holds():
		return b, bTime
	case b == v1alpha1.HoldEveryBatch:
		a = b
	}
	return a, max(aTime, bTime)
}
