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
	"encoding/json"
)

// Release has the values from which the order of a release is made.
type Release struct {
	// Title is cut if it is too long.
	Title string
	// Namespace and Name of the workload, and the application it belongs to.
	Namespace, Name, App string
	// User who releases.
	User              string
	Phase, TargetType string
	// Parameters are the values that rules of the server can read (changeParamJson).
	Parameters any
	Origin     Origin
}

// Order makes the order of a release: one target, the workload, in one phase.
func (r Release) Order() Order {
	return Order{
		ChangeTitle:        Cut(r.Title, MaxChangeTitle),
		Creator:            CutUser(r.User),
		ChangeScenarioCode: ScenarioDefault,
		ChangePhases:       []string{r.Phase},
		ChangeContents: []ChangeContent{{
			ContentType: ContentType{TypeName: r.TargetType}, InstanceName: r.Namespace + "/" + r.Name,
		}},
		ChangeApps:      []string{r.App},
		ChangeParamJSON: JSONText(r.Parameters),
		Origin:          r.Origin,
	}
}

// JSONText returns a value as JSON text, the form of parameters and results in requests. The
// operator's values can always be encoded.
func JSONText(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return "{}"
	}
	return string(data)
}
