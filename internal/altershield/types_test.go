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

package altershield

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func testBase() Base {
	return Base{TenantCode: DefaultTenant, ChangeSceneKey: DefaultScene, BizExecOrderID: "order-1", Platform: DefaultPlatform}
}

func testOrder() SubmitOrderRequest {
	return SubmitOrderRequest{Base: testBase(), Order: Order{
		ChangeTitle: "release sleep", Creator: "alice", ChangeScenarioCode: ScenarioDefault,
		ChangePhases:    []string{PhaseProd},
		ChangeContents:  []ChangeContent{{ContentType: ContentType{TypeName: DefaultTargetType}, InstanceName: "default/sleep"}},
		ChangeParamJSON: `{"workload":"sleep"}`, ChangeApps: []string{"sleep"},
	}}
}

func testBatch() StartBatchRequest {
	return StartBatchRequest{
		Base: testBase(), Start: Start{Executor: "alice"}, BatchNo: 0, TotalBatchNum: 5, TotalBatchNumInChangePhase: 5,
		IsLastBatchTag: TagNotLast, IsLastBatchInChangePhaseTag: TagNotLast, ChangePhase: PhaseProd,
		EffectiveTargetType: DefaultTargetType, EffectiveTargetLocations: []string{"sleep-1"},
	}
}

// manyPods are names of pods, all of one length.
func manyPods(count, length int) []string {
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%0*d", length, i)
	}
	return names
}

func TestFit(t *testing.T) {
	for name, test := range map[string]struct {
		list  []string
		limit int
		want  int
	}{
		"none":          {nil, 10, 0},
		"all":           {[]string{"a", "b"}, 10, 2},
		"one too many":  {[]string{"a", "b", "c"}, 13, 2},
		"not one":       {[]string{strings.Repeat("a", 100)}, 50, 0},
		"thousands":     {manyPods(5000, 253), 48 << 10, 191},
		"escapes count": {[]string{"<<<", "a"}, 23, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got := Fit(test.list, test.limit)
			if data := JSONText(got); len(got) != test.want || len(got) > 0 && len(data) > test.limit {
				t.Errorf("%d of %d in %d bytes, want %d in at most %d", len(got), len(test.list), len(data), test.want, test.limit)
			}
		})
	}
}

func TestCutUser(t *testing.T) {
	tests := map[string]struct {
		in   string
		want int
	}{
		"short":            {"alice", 5},
		"exact":            {strings.Repeat("a", 56), 56},
		"ASCII":            {strings.Repeat("a", 57), 56},
		"two-byte runes":   {strings.Repeat("é", 40), 56},
		"three-byte runes": {strings.Repeat("发", 40), 54},
		"four-byte runes":  {strings.Repeat("😀", 40), 56},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := CutUser(tc.in)
			if len(got) != tc.want || !utf8.ValidString(got) || !strings.HasPrefix(tc.in, got) {
				t.Errorf("CutUser() = %q of %d bytes, want %d bytes", got, len(got), tc.want)
			}
		})
	}
}

// TestEncode: one compact line without a newline, pure ASCII, dates as numbers.
func TestEncode(t *testing.T) {
	r := FinishNodeRequest{
		Base: testBase(), NodeID: "n", Success: false, Msg: "é😀\n<x>", FinishTime: MillisOf(time.UnixMilli(1700000000123)),
	}
	got, err := encode(&r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"tenantCode":"default","changeSceneKey":"com.alipay.altershield.kubernetes.rollingupdate","bizExecOrderId":"order-1",` +
		`"platform":"kubernetes","nodeId":"n","success":false,"msg":"\u00e9\ud83d\ude00\n\u003cx\u003e","finishTime":1700000000123}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
}

func TestMillis(t *testing.T) {
	at := time.UnixMilli(1700000000123)
	if got := MillisOf(at); got != 1700000000123 {
		t.Errorf("MillisOf() = %v", got)
	}
	if MillisOf(time.Time{}) != 0 {
		t.Error("the zero time is not the zero Millis")
	}
}
