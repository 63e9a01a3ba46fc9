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
	"errors"
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

func with[T any](r T, change func(*T)) T {
	change(&r)
	return r
}

// jsonOf is JSON text of so many bytes.
func jsonOf(size int) string { return `"` + strings.Repeat("a", size-2) + `"` }

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

func TestValidate(t *testing.T) {
	long := func(n int) string { return strings.Repeat("é", n/2) + strings.Repeat("a", n%2) }
	tests := map[string]struct {
		request interface{ Validate() error }
		// wantFields are those refused, none for a valid request.
		wantFields []string
	}{
		"order": {request: testOrder()},
		"batch": {request: testBatch()},
		"limits are kept": {request: with(testOrder(), func(r *SubmitOrderRequest) {
			r.BizExecOrderID, r.ChangeTitle, r.Creator = long(128), long(256), long(56)
		})},
		"limits count bytes": {
			request: with(testOrder(), func(r *SubmitOrderRequest) {
				r.ChangeSceneKey, r.BizExecOrderID, r.Platform = long(257), long(129), long(33)
				r.ChangeTitle, r.ChangeURL, r.Creator = long(257), long(513), long(57)
			}),
			wantFields: []string{"changeSceneKey", "bizExecOrderId", "platform", "changeTitle", "changeUrl", "creator"},
		},
		"blank": {
			request:    SubmitOrderRequest{Base: Base{TenantCode: " ", ChangeSceneKey: "\t"}},
			wantFields: []string{"tenantCode", "changeSceneKey", "bizExecOrderId", "platform", "changeTitle", "creator", "changeScenarioCode", "changePhases", "changeContents", "changeParamJson"},
		},
		"parameters that are not JSON": {request: with(testOrder(), func(r *SubmitOrderRequest) { r.ChangeParamJSON = "{" }), wantFields: []string{"changeParamJson"}},
		"unknown phase":                {request: with(testOrder(), func(r *SubmitOrderRequest) { r.ChangePhases = []string{"prod"} }), wantFields: []string{"changePhases"}},
		"invalid UTF-8":                {request: with(testOrder(), func(r *SubmitOrderRequest) { r.ChangeTitle = "a\xff" }), wantFields: []string{"changeTitle"}},
		"negative batch numbers": {
			request:    with(testBatch(), func(r *StartBatchRequest) { r.BatchNo, r.TotalBatchNum, r.TotalBatchNumInChangePhase = -1, -1, -1 }),
			wantFields: []string{"batchNo", "totalBatchNum", "totalBatchNumInChangePhase"},
		},
		"batch without locations": {request: with(testBatch(), func(r *StartBatchRequest) { r.EffectiveTargetLocations = nil }), wantFields: []string{"effectiveTargetLocations"}},
		"batch with wrong tag":    {request: with(testBatch(), func(r *StartBatchRequest) { r.IsLastBatchTag = "" }), wantFields: []string{"isLastBatchTag"}},
		"executor of a batch":     {request: with(testBatch(), func(r *StartBatchRequest) { r.Executor = long(128) })},
		"executor of an order":    {request: StartOrderRequest{Base: testBase(), Start: Start{Executor: long(57)}}, wantFields: []string{"executor"}},
		"finish":                  {request: FinishNodeRequest{Base: testBase(), NodeID: "n", Msg: long(4048)}},
		"finish over the limit": {
			request:    FinishNodeRequest{Base: testBase(), Msg: long(4049), ServiceResult: "x", ChangeResultJSON: "{"},
			wantFields: []string{"nodeId", "msg", "serviceResult", "changeResultJsn"},
		},
		// Such a value is stored in one column, and a longer one fails there each time.
		"JSON at the limit": {request: with(testOrder(), func(r *SubmitOrderRequest) { r.ChangeParamJSON = jsonOf(65535) })},
		"JSON over the limit": {
			request: with(testBatch(), func(r *StartBatchRequest) {
				r.EffectiveTargetLocations, r.ExtInfo = manyPods(2000, 34), map[string]any{"pods": manyPods(2000, 34)}
			}),
			wantFields: []string{"effectiveTargetLocations", "extInfo"},
		},
		"as many pods as the server takes": {request: with(testBatch(), func(r *StartBatchRequest) { r.EffectiveTargetLocations = manyPods(1500, 34) })},
		"JSON text over the limit": {
			request:    FinishNodeRequest{Base: testBase(), NodeID: "n", ServiceResult: jsonOf(65536), ChangeResultJSON: jsonOf(65536), EffectiveTargetLocations: manyPods(2000, 34)},
			wantFields: []string{"serviceResult", "changeResultJsn", "effectiveTargetLocations"},
		},
		"parameters over the limit": {request: with(testOrder(), func(r *SubmitOrderRequest) { r.ChangeParamJSON = jsonOf(65536) }), wantFields: []string{"changeParamJson"}},
		"poll without a stage":      {request: RetrieveCheckRequest{Base: testBase(), NodeID: "n"}, wantFields: []string{"defenseStage"}},
		"end":                       {request: EndOrderRequest{Base: testBase(), FinishState: "DONE"}, wantFields: []string{"finishState"}},
		"synchronous":               {request: SubmitAndStartRequest{Base: testBase(), Order: testOrder().Order}, wantFields: []string{"executor"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.request.Validate()
			var got []string
			var all fieldErrors
			if errors.As(err, &all) {
				for _, one := range all {
					var field *FieldError
					if errors.As(one, &field) && (len(got) == 0 || got[len(got)-1] != field.Field) {
						got = append(got, field.Field)
					}
					if field.Problem == "" || field.Remedy == "" {
						t.Errorf("%q says no problem or no remedy", field)
					}
				}
			}
			if diff := cmp.Diff(tc.wantFields, got); diff != "" {
				t.Errorf("refused fields (-want +got):\n%s\n%v", diff, err)
			}
			if IsInvalid(err) != (len(tc.wantFields) > 0) {
				t.Errorf("IsInvalid(%v) = %v", err, IsInvalid(err))
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
	if got := MillisOf(at); got != 1700000000123 || !got.Time().Equal(at) {
		t.Errorf("MillisOf() = %v, back %v", got, got.Time())
	}
	if MillisOf(time.Time{}) != 0 || !Millis(0).Time().IsZero() {
		t.Error("the zero time is not the zero Millis")
	}
}
