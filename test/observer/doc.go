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

// Package observer watches a control plane while tests run, and says which of
// the operator's invariants were violated, by which version of which object.
//
// It is independent of the operator: it shares the API types with it, and none
// of its decisions. What it knows comes from watches of its own and from the API
// server's audit log, which tells who wrote which version. Both are put into the
// order of resource versions, so that every version of an object is judged
// against the one before it and against the state the whole cluster was in at
// that moment. The judgement is a pure function of that history.
//
// A history with a hole in it is not judged: after a watch that could not be
// resumed everything is listed again. Gaps returns each hole, each version whose
// writer is unknown, and what was not judged by the end.
package observer
